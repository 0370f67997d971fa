package tokenizer

import "time"

// SetTimeout bounds the time of a search.
func (t *Tokenizer) SetTimeout(d time.Duration) {
	for i := range t.splits {
		t.splits[i].pattern.MatchTimeout = d
	}
}

// SetWindow makes splits search so many bytes at a time.
func (t *Tokenizer) SetWindow(bytes int) {
	for i := range t.splits {
		t.splits[i].window = bytes
	}
}
