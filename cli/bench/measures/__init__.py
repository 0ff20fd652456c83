"""How a benchmark measures: phases, latency while adding, growth, emitters."""
