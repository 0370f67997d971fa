package nn

import "penstock.example/torch"

// Cache holds the keys and values of the tokens that attention has seen, so that a text is continued
// without computing them again: set Config.Cache, run the model on the first tokens, and then on one
// token after the other. It is for forwards without gradients of one batch of sequences. Call Advance
// after each forward, and Close at the end.
type Cache struct {
	tokens int64
	values map[string]*torch.Tensor // by the layer's path
}

// Advance counts the tokens of a forward.
func (k *Cache) Advance(tokens int64) { k.tokens += tokens }

func (k *Cache) Close() {
	for _, t := range k.values {
		t.Free()
	}
	k.values, k.tokens = nil, 0
}

// Seen is the number of tokens in the cache, which come before those of this forward.
func (c *Ctx) Seen() int64 {
	if c.Cache == nil {
		return 0
	}
	return c.Cache.tokens
}

// cached appends x, keys or values, to those in the cache along a dimension, and returns all.
func (c *Ctx) cached(x *torch.Tensor, what string, dim int64) *torch.Tensor {
	if c.Cache == nil {
		return x
	}
	key := c.Path() + " " + what
	if before := c.Cache.values[key]; before != nil {
		x = c.Cat([]*torch.Tensor{before, x}, dim)
		before.Free()
	}
	if c.Cache.values == nil {
		c.Cache.values = map[string]*torch.Tensor{}
	}
	c.Cache.values[key] = c.Keep(x)
	return x
}
