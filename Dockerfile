FROM python:3.13-slim
COPY pyproject.toml setup.py README.md LICENSE /src/
COPY nvdla /src/nvdla
COPY kernels /src/kernels
COPY samples /src/samples
RUN pip install --no-cache-dir --root-user-action=ignore /src && rm -rf /src && useradd --create-home user
USER user
WORKDIR /data
ENTRYPOINT ["nvdla"]
