// Package guide_test holds the code of docs/guide.md, one file for a few of its sections, and
// checks that the page shows this code and nothing else.
package guide_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"testing"

	"penstock.example/torch"
)

// ctx and check stand for what a program has anyway.
var ctx = context.Background()

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// TestMain also holds the examples to what the page asks of its readers: who keeps a tensor frees
// it, who sets a limit lifts it.
func TestMain(m *testing.M) {
	torch.TrackLeaks(true)
	code := m.Run()
	for _, leak := range torch.Leaks() {
		fmt.Println("an example leaves tensors behind:", leak)
		code = 1
	}
	for i := range 4 {
		if d := torch.CPU(i); d.Memory().Live != 0 || d.Memory().Limit != 0 {
			fmt.Printf("an example leaves %v with %+v\n", d, d.Memory())
			code = 1
		}
	}
	os.Exit(code)
}
