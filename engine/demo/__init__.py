"""The demo model: an ordinary Qwen3 checkpoint of a few megabytes that this project trains from text it wrote.

Knows: its own questions and answers, how to train (`train.py`) and how to score (`evaluate.py`).
Does not know: how to serve itself; any program that loads a Hugging Face folder can do that.
"""
