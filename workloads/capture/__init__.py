"""Steps of programs as they are: recorded without a GPU, read from a file, lowered like a model's step."""
