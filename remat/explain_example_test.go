package remat_test

import (
	"fmt"
	"log"

	"penstock.example/remat"
)

// A plan is drawn: o is a forward that keeps nothing, s one that saves what backward needs, K one that
// keeps its input, # one again.
func ExampleDraw() {
	chain := remat.Chain{Input: 1, InputGradient: 1}
	for i := range 4 {
		chain.Layers = append(chain.Layers, remat.Layer{Name: fmt.Sprint("l", i),
			Forward: 1, ForwardNoGrad: 1, Backward: 2, Output: 1, Saved: 3, Gradient: 1})
	}
	ops, err := remat.Sequential(4, 2)
	if err != nil {
		log.Fatal(err)
	}
	text, err := remat.Draw(chain, ops, remat.DrawConfig{Width: 80})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(text)
	// Output:
	// 11 operations, 2 recomputed; 1 column = 1; X of the memory row = 10 bytes
	// 0 l0    Koooooos##B
	// 1 l1    oF      sB
	// 2 l2     oS###B
	// 3 l3       S#B
	// loss        L
	// memory  23589X75896
}
