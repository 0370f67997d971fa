package tokenizer

// SetWindow makes splits search so many bytes at a time.
func (t *Tokenizer) SetWindow(bytes int) {
	for i := range t.splits {
		t.splits[i].window = bytes
	}
}
