"""Ways of spreading a model over ranks: each adds its communication to the tape."""
