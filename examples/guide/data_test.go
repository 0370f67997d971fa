package guide_test

import (
	"fmt"

	"penstock.example/data"
	"penstock.example/tokenizer"
)

func Example_data() {
	set, err := data.FromSlices([]float32{0, 0, 0, 1, 1, 0, 1, 1}, []int64{2}, []int{0, 1, 1, 0}) // 4 rows of 2
	check(err)
	training, testing, err := data.Split(set, 0.25, 1) // a quarter to test with, drawn by seed 1
	check(err)
	fmt.Println(set.Info().Task(), set.Info().Classes, training.Len(), testing.Len())

	t, err := tokenizer.Open("../../tokenizer/testdata") // 377 tokens
	check(err)
	ids, err := t.Encode([]byte("the stages of the pipeline"))
	check(err)
	tokens, err := data.NewTokens(ids, t.Len(), 2) // samples of two tokens, and the two that follow
	check(err)
	fmt.Printf("%d tokens, %d sample\n", len(ids), tokens.Len())
	// Output:
	// classification 2 3 1
	// 5 tokens, 1 sample
}
