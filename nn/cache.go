package nn

import "penstock.example/torch"

// Cache holds the keys and values of the tokens that attention has seen, so that a text is
// continued without computing them again. Set Config.Cache, run the model on the first tokens, then
// on one token after the other, without gradients and on the same batch of sequences. Call Advance
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

// Seen is the number of tokens in the cache. They precede the tokens of this forward.
func (c *Ctx) Seen() int64 {
	if c.Cache == nil {
		return 0
	}
	return c.Cache.tokens
}

// appendToCache appends keys or values of the running layer to the cache along a dimension, and
// returns all that the cache now has under the name. Without a cache it returns x.
func (c *Ctx) appendToCache(x *torch.Tensor, name string, dim int64) *torch.Tensor {
	if c.Cache == nil {
		return x
	}
	if c.Cache.values == nil {
		c.Cache.values = map[string]*torch.Tensor{}
	}
	key := c.Path() + " " + name
	if before := c.Cache.values[key]; before != nil {
		x = c.Cat([]*torch.Tensor{before, x}, dim)
		before.Free()
	}
	c.Cache.values[key] = c.Keep(x)
	return x
}
