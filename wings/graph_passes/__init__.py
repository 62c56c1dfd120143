"""Graph passes of other libraries, fusions of attention, and a fold of constant factors into weights."""
