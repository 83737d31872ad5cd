# One image for every role of a job: its command is `ddloco`.
#
#   docker build --tag ddloco .                                    learners on processors
#   docker build --tag ddloco:cuda --build-arg JAX='jax[cuda12]' . learners on NVIDIA GPUs
#
# A task goes into an image of its own (FROM ddloco, COPY task.py ./), or is mounted at /app.
# The root may be read-only: a job writes to its run folder, to /tmp and to /dev/shm only. Messages
# of fragments lie in /dev/shm if it has room for them (--shm-size=2g), in files of /tmp if not.
FROM debian:12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev python3-venv
COPY . /src
RUN python3 -m venv /build && /build/bin/pip install --no-cache-dir build hatchling
RUN cd /src && /build/bin/python -m build --no-isolation --wheel --outdir /wheels

FROM debian:12-slim
ARG JAX=jax
RUN apt-get update && apt-get install --yes --no-install-recommends python3-venv tini && rm -rf /var/lib/apt/lists/*
COPY --from=build /wheels /wheels
RUN python3 -m venv /opt/ddloco && /opt/ddloco/bin/pip install --no-cache-dir /wheels/*.whl "$JAX"
RUN useradd --create-home --uid 1000 ddloco && mkdir /app && chown ddloco /app
ENV PATH=/opt/ddloco/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1
USER ddloco
WORKDIR /app
ENTRYPOINT ["/usr/bin/tini", "--", "ddloco"]
CMD ["--help"]
