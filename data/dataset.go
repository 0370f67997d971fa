// Package data reads data sets and delivers them in batches of Go slices. It has no tensors and
// downloads nothing.
//
//	train, test, err := data.Open("fashion-mnist", "", data.Options{})
//	loader, err := data.NewLoader(train, data.LoaderConfig{BatchSize: 64, Seed: 1, Shuffle: true})
//	defer loader.Close()
//	for epoch := range 3 {
//		for {
//			batch, err := loader.Next(ctx)
//			if err == io.EOF {
//				break // the next call begins another epoch
//			}
//			...
//		}
//	}
//
// The batches of a Loader depend only on the data, the configuration and the position. Prefetching does
// not change them. A run resumed at a saved Position sees the batches of an uninterrupted run.
package data

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Dataset is a sequence of samples. Its methods may be called concurrently.
type Dataset interface {
	// Len returns the number of samples.
	Len() int

	// Info describes the samples. The caller must not change its slices.
	Info() Info

	// Fill replaces the content of batch by the samples of these indices. It may reuse batch's slices,
	// and does not keep indices. It returns an error if an index is not in [0, Len()) or a sample
	// cannot be read; batch is then unusable.
	Fill(batch *Batch, indices []int) error
}

// Info describes the samples of a data set. NewInputs makes inputs of the same form from files.
type Info struct {
	Name    string `json:"name"`
	Classes int    `json:"classes,omitempty"` // a target is in [0, Classes); 0 for regression
	Input   Spec   `json:"input"`             // images are Float32 [channels, height, width]
	Target  Spec   `json:"target"`

	// Pad is the value of a black pixel in each channel, for the margins of augmented images. Nil if
	// inputs are not images.
	Pad []float32 `json:"pad,omitempty"`

	// ClassNames has the name of each class, or is nil if classes are numbers.
	ClassNames []string `json:"class_names,omitempty"`

	// Source is the kind of the original data. Float32 inputs from Uint8 are byte/255, or with Mean and
	// Std (byte/255 - Mean) / Std by channel. Float32 inputs from Float32 are unchanged, or (x - Mean) /
	// Std by column. Int64 inputs from Uint8 are the bytes of a text.
	Source Kind      `json:"source"`
	Mean   []float64 `json:"mean,omitempty"`
	Std    []float64 `json:"std,omitempty"`

	// Columns are the names of a table's columns: the inputs' in order, then the target's. Nil without a
	// table or its header.
	Columns []string `json:"columns,omitempty"`

	// TargetColumn is the number, from 1, of the target's column in a table without a header. 0
	// means the last column.
	TargetColumn int `json:"target_column,omitempty"`

	// Tokenizer is the sum of the text's tokenizer (tokenizer.Tokenizer.Sum), or "" if unknown or none.
	Tokenizer string `json:"tokenizer_sha256,omitempty"`

	// Begin has the special tokens before each text, such as Llama's <|begin_of_text|>.
	Begin []int32 `json:"begin,omitempty"`
}

// checkTokenizer returns an error if sum and i.Tokenizer are of different tokenizers.
func (i Info) checkTokenizer(sum string) error {
	if i.Tokenizer == "" || sum == "" || i.Tokenizer == sum {
		return nil
	}
	return fmt.Errorf("the tokenizer's vocabulary and merges have the SHA-256 %s, and the model was "+
		"trained with those of %s; want the tokenizer that it was trained with", sum, i.Tokenizer)
}

// checkForm returns an error if samples do not have the form i. A nil i stands for any form.
func (i *Info) checkForm(samples Info) error {
	if i == nil {
		return nil
	}
	form := func(s Info) string {
		out := fmt.Sprintf("inputs %v %v and outputs %d for %s", s.Input.Kind, s.Input.Shape, s.Outputs(),
			s.Task())
		if s.Task() == NextToken && s.Source == Uint8 {
			out += " of bytes"
		}
		if i.ClassNames != nil && samples.ClassNames != nil {
			out += fmt.Sprint(" of the classes ", s.ClassNames)
		}
		return out
	}
	if is, was := form(samples), form(*i); is != was {
		return fmt.Errorf("the data have %s, and the model was trained with %s", is, was)
	}
	return nil
}

// Task is the kind of a set's targets.
type Task string

const (
	Classification Task = "classification" // a class
	Regression     Task = "regression"     // Float32 numbers
	Segmentation   Task = "segmentation"   // a class for each pixel of an image, Int64 [height, width]
	NextToken      Task = "next token"     // the token after each of the input's, both Int64 [length]
)

// Task derives the task from the kinds and shapes of inputs and targets.
func (i Info) Task() Task {
	switch {
	case i.Target.Kind == Float32:
		return Regression
	case i.Input.Kind == Int64:
		return NextToken
	case len(i.Target.Shape) == 2:
		return Segmentation
	}
	return Classification
}

// Outputs returns the number of a model's outputs for each target: one for each class, or in
// regression one for each number of the target.
func (i Info) Outputs() int {
	if i.Task() == Regression {
		return i.Target.Size()
	}
	return i.Classes
}

// Batch holds samples. Row i of Input and row i of Target are one sample. The Shapes begin with Rows.
type Batch struct {
	Input, Target Array
	Rows          int
}

// resize checks the indices of samples of a set, and resizes the batch for them.
func (b *Batch) resize(set Dataset, indices []int) error {
	info := set.Info()
	if err := checkIndices(info.Name, set.Len(), indices); err != nil {
		return err
	}
	b.Input.Reset(len(indices), info.Input)
	b.Target.Reset(len(indices), info.Target)
	b.Rows = len(indices)
	return nil
}

func checkIndices(name string, length int, indices []int) error {
	for _, index := range indices {
		if index < 0 || index >= length {
			return fmt.Errorf("data: %s: sample %d asked for, there are samples 0 to %d", name, index,
				length-1)
		}
	}
	return nil
}

// Split divides a data set into samples to train with and a share of samples to test with, at least one.
// The test samples are drawn by seed, and both parts keep the set's order. A share of 0 is 0.1. Split
// returns an error if share is not between 0 and 1 or the set has fewer than two samples.
func Split(set Dataset, share float64, seed uint64) (train, test Dataset, err error) {
	train, test, err = split(set, share, seed, false)
	return train, test, named(set.Info().Name, err)
}

// split is Split without the set's name in errors. With textEnd, the last samples of a text without
// prompts are the test samples, and none are drawn.
func split(set Dataset, share float64, seed uint64, textEnd bool) (train, test Dataset, err error) {
	n := set.Len()
	switch share = cmp.Or(share, 0.1); {
	case !(share > 0 && share < 1):
		return nil, nil, &ConfigError{Field: "Holdout", Value: share, Remedy: "want a share between 0 and 1"}
	case n < 2:
		return nil, nil, fmt.Errorf("%d samples; want at least 2, one to train and one to test with", n)
	}
	testSize := min(int(math.Ceil(share*float64(n))), n-1)
	order := permutation(n, seed, 0)
	if t, ok := set.(*textSet); ok && textEnd && !t.prompts {
		slices.Sort(order)
		slices.Reverse(order)
	}
	slices.Sort(order[:testSize])
	slices.Sort(order[testSize:])
	return &subset{set, order[testSize:]}, &subset{set, order[:testSize]}, nil
}

type subset struct {
	Dataset
	indices []int
}

func (s *subset) Len() int { return len(s.indices) }

func (s *subset) Fill(batch *Batch, indices []int) error {
	if err := checkIndices(s.Info().Name, s.Len(), indices); err != nil {
		return err
	}
	return s.Dataset.Fill(batch, s.wholeIndices(indices))
}

// wholeIndices converts indices of the subset to indices of the whole set.
func (s *subset) wholeIndices(indices []int) []int {
	whole := make([]int, len(indices))
	for i, index := range indices {
		whole[i] = s.indices[index]
	}
	return whole
}

// Join concatenates two sets of the same kind, such as both parts of Open. Info is the first's.
func Join(first, second Dataset) Dataset { return &joined{first, second} }

type joined struct{ first, second Dataset }

func (j *joined) Len() int   { return j.first.Len() + j.second.Len() }
func (j *joined) Info() Info { return j.first.Info() }

func (j *joined) Fill(batch *Batch, indices []int) error {
	if err := batch.resize(j, indices); err != nil {
		return err
	}
	info, from := j.Info(), 0
	for _, part := range []Dataset{j.first, j.second} {
		var rows, own []int
		for row, index := range indices {
			if at := index - from; at >= 0 && at < part.Len() {
				rows, own = append(rows, row), append(own, at)
			}
		}
		var some Batch
		if err := part.Fill(&some, own); err != nil {
			return err
		}
		for i, row := range rows {
			copyRow(&batch.Input, row, some.Input, i, info.Input.Size())
			copyRow(&batch.Target, row, some.Target, i, info.Target.Size())
		}
		from += part.Len()
	}
	return nil
}
