package group_test

import (
	"context"
	"fmt"
	"sync"

	"penstock.example/group"
)

// Three members say what they have, and all know what each says.
func ExampleMeet() {
	var all sync.WaitGroup
	for _, g := range group.Local(3) {
		all.Go(func() {
			defer g.Close()
			layers, err := group.Meet(context.Background(), g, "the layers of each", 10*(g.Rank()+1), nil)
			if g.Rank() == 0 {
				fmt.Println(layers, err)
			}
		})
	}
	all.Wait()
	// Output:
	// [10 20 30] <nil>
}
