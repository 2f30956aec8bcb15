"""What both model services are made of: the model thread, wire conversion, spans and metrics."""
