"""What an editor asks of a text: `stagec lsp`. `names.py` and `answers.py` know texts, `server.py` the protocol."""
