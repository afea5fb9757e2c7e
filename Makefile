# The words a person needs. Everything happens in .venv; no root, nothing outside this folder.
.PHONY: run test check bench docs clean

run:  ## set up the light core and take the tour
	@scripts/setup
	@echo "run: takeup tour"
	@.venv/bin/takeup tour

test:  ## set up the test extras and run the suite
	@scripts/setup test
	@echo "test: pytest"
	@.venv/bin/python -m pytest -n 2 --dist worksteal

check:  ## format, lint and types
	@scripts/setup test
	@scripts/check

bench:  ## measure ourselves against the peers
	@scripts/setup test
	@.venv/bin/python benchmarks/caching.py
	@.venv/bin/python benchmarks/streaming.py

docs:  ## write the generated parts of the documentation anew
	@scripts/setup test
	@.venv/bin/python scripts/docs.py

clean:  ## forget the environment and everything generated
	rm -rf .venv takeup-tour takeup-out dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
