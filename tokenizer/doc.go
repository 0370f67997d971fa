// Package tokenizer turns text into the numbers that language models read, by byte-pair encoding
// (Sennrich et al. 2016, over bytes: Radford et al. 2019), and back. It reads the files that Hugging
// Face's tokenizers write: tokenizer.json, or vocab.json and merges.txt.
//
//	t, err := tokenizer.Open("gpt2") // the directory of a model's files
//	ids, err := t.Encode([]byte("Hello, world"))
//	text, err := t.Decode(ids)
//
// A file that asks for anything that would be done otherwise here is refused when it is opened: what
// Encode returns is what Hugging Face's tokenizers return without special tokens around the text, or
// an error. Nothing is learned here, and nothing is downloaded.
//
// A text becomes tokens in four steps:
//
//	"A café<|eot|>"    tokens that were added stand apart          "A café"  <|eot|>
//	"A café"           it is normalised, and split into pieces     "A"  " café"
//	" café"            the bytes of a piece become characters      Ġ c a f Ã ©
//	Ġ c a f Ã ©        pairs are merged, the earliest merge first  Ġc af Ã©
package tokenizer
