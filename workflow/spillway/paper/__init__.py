"""Which number stands in the text? Numbers, formatting, figures, templates, audit."""
