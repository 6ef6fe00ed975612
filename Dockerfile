# The gateway with its encoder, its engine and both models inside: nothing is fetched when it runs.
# BASE only has to have Python 3.11+ with venv; TORCH_INDEX picks another build of torch (see README, CPU only).
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
RUN python3 -m venv /opt/nearhit && /opt/nearhit/bin/pip install --quiet --upgrade pip
RUN /opt/nearhit/bin/pip install --quiet ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} "${TORCH}"
WORKDIR /src
# dependencies in a layer of their own: a change of code does not install torch's neighbours again
COPY pyproject.toml ./
RUN /opt/nearhit/bin/python3 -c "import tomllib, pathlib; pathlib.Path('needs.txt').write_text('\n'.join((lambda p: p['dependencies'] + p['optional-dependencies']['oidc'])(tomllib.loads(pathlib.Path('pyproject.toml').read_text())['project'])))" \
 && /opt/nearhit/bin/pip install --quiet -r needs.txt
COPY README.md LICENSE ./
COPY gateway gateway
COPY engine engine
COPY cache cache
COPY policies policies
COPY migrations migrations
RUN /opt/nearhit/bin/pip install --quiet --no-deps .

FROM ${BASE}
RUN groupadd --gid 10001 nearhit \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin nearhit \
 && install -d -o nearhit -g nearhit -m 0700 /data
COPY --from=build /opt/nearhit /opt/nearhit
ENV PATH=/opt/nearhit/bin:$PATH \
    HOME=/tmp \
    HF_HUB_OFFLINE=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NEARHIT_HOME=/data \
    NEARHIT_SERVER__HOST=0.0.0.0
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
  CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health/ready', timeout=2)"]
ENTRYPOINT ["nearhit"]
CMD ["serve"]
