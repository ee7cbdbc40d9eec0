"""Do: the small shell that carries a plan out on an engine. The only ring with effects."""
