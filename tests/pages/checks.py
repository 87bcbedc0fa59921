"""What is asked of a page in a browser, as JavaScript expressions."""

OUTSIDE = """
[...document.querySelectorAll('body *')]
  .filter(e => !e.closest('.scroll, .skip') && e.getBoundingClientRect().width > 0)
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1 || e.getBoundingClientRect().left < -1)
  .map(e => `${e.tagName} ${Math.round(e.getBoundingClientRect().right)} ${e.textContent.slice(0, 60)}`)
"""
"""Elements that stand out of the page, but for those in a box of their own that scrolls."""

CONTRAST = """
(() => {
  const parts = colour => colour.match(/[\\d.]+/g).map(Number);
  const channel = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const opaque = colour => { const p = parts(colour); return p.length < 4 || p[3] === 1; };
  const behind = element => {
    for (let e = element; e; e = e.parentElement)
      if (opaque(getComputedStyle(e).backgroundColor)) return getComputedStyle(e).backgroundColor;
    return 'rgb(255, 255, 255)';
  };
  // In a picture, what was drawn before a text and holds its middle lies behind it, unless the text has an outline of its own.
  const behindInPicture = text => {
    const style = getComputedStyle(text), box = text.getBoundingClientRect();
    if (style.stroke !== 'none') return style.stroke;
    const x = box.left + box.width / 2, y = box.top + box.height / 2;
    let found = null;
    for (const shape of text.ownerSVGElement.querySelectorAll('rect')) {
      if (!(shape.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING)) continue;
      const r = shape.getBoundingClientRect();
      if (r.left <= x && x <= r.right && r.top <= y && y <= r.bottom) found = getComputedStyle(shape).fill;
    }
    return found || behind(text.ownerSVGElement.parentElement);
  };
  const faint = [];
  let texts = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.getClientRects().length || element.closest('title, desc, style')) continue;
    const style = getComputedStyle(element), picture = element.ownerSVGElement;
    const pair = picture ? [style.fill, behindInPicture(element)] : [style.color, behind(element)];
    const [light, dark] = pair.map(colour => luminance(parts(colour))).sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05), size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    texts += 1;
    if (ratio < (large ? 3 : 4.5))
      faint.push(`${ratio.toFixed(2)} ${pair.join(' on ')} ${walker.currentNode.data.trim().slice(0, 40)}`);
  }
  return {texts, faint: [...new Set(faint)]};
})()
"""
"""Texts and those of them fainter than WCAG 2.2 AA asks: 4.5 to 1, or 3 to 1 for large ones (24 px, or 18.66 px and bold)."""
