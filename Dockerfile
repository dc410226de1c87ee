# The demo in a container: docker build -t lantern . && docker run -p 7860:7860 lantern
# Weights beyond the shipped ones: -v FOLDER:/models -e LANTERN_MODELS=/models
# On a GPU: --gpus all. For a smaller image without CUDA:
#   --build-arg PIP_OPTIONS="--index-url URL of PyTorch's CPU wheels"
FROM python:3.12-slim

RUN useradd --create-home lantern
WORKDIR /home/lantern/app
COPY requirements.txt .
ARG PIP_OPTIONS=""
RUN pip install --no-cache-dir $PIP_OPTIONS -r requirements.txt
COPY --chown=lantern app.py README.md LICENSE ./
COPY --chown=lantern app app
COPY --chown=lantern lantern lantern
COPY --chown=lantern assets assets
COPY --chown=lantern checkpoints checkpoints
USER lantern

ENV GRADIO_SERVER_NAME=0.0.0.0 GRADIO_SERVER_PORT=7860
EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s \
  CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{os.environ[\"GRADIO_SERVER_PORT\"]}/config', timeout=8)"]
CMD ["python", "app.py"]
