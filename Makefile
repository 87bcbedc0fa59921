# Three commands, each making what it needs first; see README.md. `make check` is for people who change the code.
.PHONY: help paper demo test unit check faults fuzz slurm clean
BIN := .envs/harness/bin
# Tests start hundreds of interpreters: where this is set, as in many containers, each of them compiles every module anew.
test unit faults fuzz: export PYTHONDONTWRITEBYTECODE =

help:
	@echo "make paper   build paper.pdf from the recorded data; starts no server"
	@echo "make demo    measure stock vLLM on this machine's CPU, then build the paper from that"
	@echo "make test    run all tests, some of them with real vLLM on the CPU"
	@echo "make unit    the unit tests alone, in under a minute"
	@echo "make faults  hundreds of kills and other faults, with a report; about an hour"
	@echo "make fuzz    ten minutes of bad input for every reader"
	@echo "make slurm   the workflow on a single-node SLURM, which it installs and starts; needs root"
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
	@scripts/setup smollm2
	@$(BIN)/snakemake --quiet host progress reason --config host=cpu -- measure
	@$(BIN)/snakemake --quiet host progress reason --config host=cpu -- paper.pdf
	@echo "paper.pdf: made from what was just measured on this machine, recorded in data/cpu/ (git restore data brings back what was there)"

test:
	@scripts/setup harness
	@scripts/setup latex
	@scripts/setup engine-cpu
	@scripts/setup smollm2
	@scripts/setup browser || echo "the tests of the pages will be skipped"
	@$(BIN)/python -m pytest -n 4 tests/unit
	@$(BIN)/python -m pytest tests/data tests/workflow tests/paper tests/pages tests/fuzz tests/faults tests/engine
	@echo "tests: passed; what was skipped stands above with its reason"

unit:
	@scripts/setup harness
	@$(BIN)/python -m pytest -n 4 tests/unit

check:
	@scripts/setup harness
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow/rules

faults:
	@scripts/setup harness
	@scripts/setup engine-cpu
	@$(BIN)/python -m pytest tests/faults --kills 300 --real 20

fuzz:
	@scripts/setup harness
	@$(BIN)/python tests/fuzz/run.py --jobs 2

slurm:
	@scripts/setup harness
	@scripts/slurm test

clean:
	rm -rf build logs paper.pdf article audit.html .snakemake
