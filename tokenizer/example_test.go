package tokenizer_test

import (
	"fmt"
	"log"

	"penstock.example/tokenizer"
)

func Example() {
	t, err := tokenizer.Open("testdata") // the directory of a model's tokenizer
	if err != nil {
		log.Fatal(err)
	}
	ids, err := t.Encode([]byte("the stages of the pipeline"))
	if err != nil {
		log.Fatal(err)
	}
	text, err := t.Decode(ids[1:])
	fmt.Printf("%d of %d: %q %v\n", len(ids), t.Len(), text, err)
	// Output:
	// 5 of 377: " stages of the pipeline" <nil>
}
