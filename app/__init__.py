"""The Gradio app: knows traces and parameters, never tensors."""
