"""Browser components: gr.HTML subclasses with their script and style beside them."""
