"""Models for other programs: ONNX files, and a folder for a static web server."""
