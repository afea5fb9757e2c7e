# The words a person needs. Everything happens in .venv; no root, nothing outside this folder.
.PHONY: run test test-engines test-random mutants test-spark35 faults fuzz soak check house bench docs site clean

run:  ## set up the core with charts and trace files, and take the tour
	@scripts/setup tour
	@echo "run: takeup tour"
	@.venv/bin/takeup tour

PYTEST = .venv/bin/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder

test:  ## set up the test extras and run what needs no foreign engine; DOMAIN=edge runs one domain
	@scripts/setup test
	@echo "test: pytest"
	@$(PYTEST) -m "not engine and not paper" $(if $(DOMAIN),tests/$(DOMAIN))

test-engines:  ## real Spark, Dask, Ray, Slurm, Kubernetes, Chromium and torchrun, and the papers reproduced
	@scripts/setup test
	@$(PYTEST) -m "engine or paper" $(if $(DOMAIN),tests/$(DOMAIN))

test-random:  ## the same as test, with examples drawn from a fresh seed that is printed
	@scripts/setup test
	@seed=$${SEED:-$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}; echo "test-random: SEED=$$seed"; \
	$(PYTEST) -m "not engine and not paper" --hypothesis-seed=$$seed

mutants:  ## change the pure rooms a little, 600 times, and count the changes that tests notice
	@scripts/setup test
	@.venv/bin/python scripts/mutants.py

test-spark35:  ## the Spark plug-in on Spark 3.5, in an environment of its own
	@test -x .venv35/bin/python || python3 -m venv .venv35
	@.venv35/bin/python -m pip install --quiet -e '.[tour]' 'pyspark==3.5.*' pytest pytest-timeout pytest-xdist hypothesis
	@.venv35/bin/python -m pytest tests/caching/engines/spark

faults:  ## every system call of every writer fails or is the last one: 10,000 points; FAULTS="--share 0.1" runs a tenth
	@scripts/setup test
	@cd tests && PYTHONPATH=. ../.venv/bin/python -m support.faults.lab $(FAULTS)

fuzz:  ## damaged inputs for every reader, for an hour; FUZZ="--each 5 --first 1000000" for other ones
	@scripts/setup test
	@cd tests && PYTHONPATH=.:.. ../.venv/bin/python -m fuzz.fuzzer --kept ../fuzz-failures $(FUZZ)

soak:  ## server, Slurm controller, Spark driver and watch for 30 minutes, and how memory, descriptors and threads grow
	@scripts/setup test
	@cd tests && PYTHONPATH=. ../.venv/bin/python -m support.soak $(SOAK)

check:  ## format, lint and types
	@scripts/setup test
	@scripts/check

house:  ## print the measures of the source tree
	@python3 scripts/house.py

bench:  ## measure ourselves against the peers
	@scripts/setup test
	@.venv/bin/python -m benchmarks.caching replay
	@.venv/bin/python -m benchmarks.caching spark-engine
	@.venv/bin/python -m benchmarks.caching dask-engine
	@.venv/bin/python -m benchmarks.cluster schedulers
	@.venv/bin/python -m benchmarks.edge plans
	@.venv/bin/python -m benchmarks.training pipelines
	@.venv/bin/python -m benchmarks.streaming solvers

docs:  ## write the generated parts of the documentation again
	@scripts/setup test
	@.venv/bin/python scripts/docs.py

site:  ## build the documentation as a site in ./site, with search
	@scripts/setup test
	@.venv/bin/mkdocs build --strict --quiet

clean:  ## forget the environment and everything generated
	rm -rf .venv .venv35 takeup-tour takeup-out dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
