package tokenizer

import "time"

// SetTimeout changes the time of a search, and returns the one before.
func (t *Tokenizer) SetTimeout(d time.Duration) (before time.Duration) {
	for i := range t.splits {
		before, t.splits[i].pattern.MatchTimeout = t.splits[i].pattern.MatchTimeout, d
	}
	return before
}

// SetWindow makes splits search so many bytes at a time.
func (t *Tokenizer) SetWindow(bytes int) {
	for i := range t.splits {
		t.splits[i].window = bytes
	}
}
