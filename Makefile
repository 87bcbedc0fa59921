# Three commands, each making what it needs first; see README.md. `make check` is for people who change the code.
.PHONY: help paper demo test unit check clean
BIN := .envs/harness/bin

help:
	@echo "make paper   build paper.pdf from the recorded data; starts no server"
	@echo "make demo    measure stock vLLM on this machine's CPU, then build the paper from that"
	@echo "make test    run all tests, some of them with real vLLM on the CPU"
	@echo "make unit    the unit tests alone, in under a minute"
	@echo "make check   formatting, lint and types"
	@echo "make clean   delete what was built; recorded data and environments stay"

paper:
	@scripts/setup harness
	@scripts/setup latex
	@$(BIN)/snakemake --quiet host progress reason -- paper.pdf
	@echo "paper.pdf: made from the recorded data in data/, see data/MANIFEST.csv"

demo:
	@scripts/setup harness
	@scripts/setup latex
	@scripts/setup engine-cpu
	@$(BIN)/snakemake --quiet host progress reason --config host=cpu -- measure
	@$(BIN)/snakemake --quiet host progress reason --config host=cpu -- paper.pdf
	@echo "paper.pdf: made from what was just measured on this machine, recorded in data/cpu/ (git restore data brings back what was there)"

test:
	@scripts/setup harness
	@scripts/setup latex
	@scripts/setup engine-cpu
	@$(BIN)/python -m pytest -n 3 tests/unit
	@$(BIN)/python -m pytest tests/data tests/workflow tests/paper tests/engine
	@echo "tests: passed; what was skipped stands above with its reason"

unit:
	@scripts/setup harness
	@$(BIN)/python -m pytest -n 3 tests/unit

check:
	@scripts/setup harness
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow/rules

clean:
	rm -rf build logs paper.pdf .snakemake
