// Package tokenizer encodes text as tokens of language models by byte-pair encoding (Sennrich et al. 2016,
// over bytes: Radford et al. 2019), and decodes it. It reads files of Hugging Face's tokenizers:
// tokenizer.json, or vocab.json and merges.txt.
//
//	t, err := tokenizer.Open("gpt2") // the directory of a model's files
//	ids, err := t.Encode([]byte("Hello, world"))
//	text, err := t.Decode(ids)
//
// Vocabularies of SentencePiece, such as Llama 2's, have characters in place of bytes, and a metaspace,
// ▁, for each space. Other characters become the tokens of their bytes, or an unknown token.
//
// Encode returns the same tokens as Hugging Face's tokenizers without special tokens around the text. Open
// refuses a file with features that this package lacks. There is no training.
//
// A text becomes tokens in four steps:
//
//	"A café<|eot|>"    added tokens are separated                  "A café"  <|eot|>
//	"A café"           text is normalised and split into pieces    "A"  " café"
//	" café"            the bytes of a piece become characters      Ġ c a f Ã ©
//	Ġ c a f Ã ©        pairs are merged, the earliest merge first  Ġc af Ã©
package tokenizer
