package guide_test

import (
	"fmt"

	"penstock.example/data"
	"penstock.example/tokenizer"
	"penstock.example/torch"
)

func Example_dataOfOnesOwn() {
	set, err := data.FromSlices([]float32{0, 0, 0, 1, 1, 0, 1, 1}, []int64{2}, []int{0, 1, 1, 0}) // four inputs of two numbers
	check(err)
	training, testing, err := data.Split(set, 0.25, 1) // a quarter to test with, drawn by a seed
	check(err)
	fmt.Println(set.Info().Task(), set.Info().Classes, training.Len(), testing.Len())

	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x, y := torch.From(c, []float32{0, 0, 0, 1, 1, 0}, 3, 2), torch.From(c, []int64{0, 1, 1}, 3)
	set, err = data.FromSlices(torch.Values[float32](x), x.Shape()[1:], torch.Values[int64](y))
	check(err)
	if set.Len() != 3 {
		panic("a sample is lost")
	}

	// Output:
	// classification 2 3 1
}

func Example_tokens() {
	t, err := tokenizer.Open("../../tokenizer/testdata") // a small one: 377 tokens
	check(err)
	ids, err := t.Encode([]byte("the stages of the pipeline"))
	check(err)
	text, err := t.Decode(ids)
	check(err)
	set, err := data.NewTokens(ids, t.Len(), 2) // samples of two tokens, and the two that follow
	check(err)
	fmt.Printf("%d of %d tokens, %q, %d samples\n", len(ids), t.Len(), text, set.Len())
	// Output:
	// 5 of 377 tokens, "the stages of the pipeline", 1 samples
}
