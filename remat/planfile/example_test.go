package planfile_test

import (
	"fmt"
	"log"

	"penstock.example/remat"
	"penstock.example/remat/planfile"
)

// A chain is written as JSON and read again.
func ExampleFormatChain() {
	text, err := planfile.FormatChain(remat.Chain{Input: 4, Layers: []remat.Layer{
		{Name: "linear", Forward: 10, ForwardNoGrad: 9, Backward: 20, Output: 8, Saved: 8, Gradient: 8}}})
	if err != nil {
		log.Fatal(err)
	}
	chain, err := planfile.ParseChain(text)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(chain.Layers[0].Name, chain.Layers[0].Backward)

	_, err = planfile.ParseChain([]byte(`{"version": 1, "input_bytes": 4, "Layers": []}`))
	fmt.Println(err)
	// Output:
	// linear 20
	// remat: chain, Layers: unknown field; want one of the file's format, in its case
}
