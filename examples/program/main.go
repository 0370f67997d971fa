// Command program is the command penstock with a model and a data set of one's own:
//
//	go run ./examples/program train --model spirals --data spirals --stages 2 --epochs 20 --out out/spirals
//	go run ./examples/program report out/spirals --out spirals.html
package main

import (
	"math"
	"math/rand/v2"

	"penstock.example/command"
	"penstock.example/data"
	"penstock.example/models"
	"penstock.example/nn"
)

func main() {
	command.Main(
		command.Model{Name: "spirals", Input: []int64{2}, Defaults: models.Options{Classes: 3, Width: 64},
			New: newModel},
		command.Data{Name: "spirals", Tasks: []data.Task{data.Classification}, Open: openSpirals})
}

// newModel makes the model for the options of --set, such as width=128, and the classes of the data set.
func newModel(o models.Options) (*nn.Sequential, error) {
	width := int64(o.Width)
	return nn.NewSequential(nn.NewLinear(2, width), nn.NewReLU(), nn.NewLinear(width, width), nn.NewReLU(),
		nn.NewLinear(width, int64(o.Classes))), nil
}

// openSpirals makes points on three spirals, to train and to test with. It needs no files.
func openSpirals(string, data.Options) (train, test data.Dataset, err error) {
	if train, err = spirals(960, 1); err == nil {
		test, err = spirals(240, 2)
	}
	return train, test, err
}

func spirals(points int, seed uint64) (data.Dataset, error) {
	r := rand.New(rand.NewPCG(seed, 0))
	var inputs []float32
	var classes []int
	for i := range points {
		radius, class := r.Float64(), i%3
		angle := 4*radius + 2*math.Pi/3*float64(class) + 0.1*r.NormFloat64()
		inputs = append(inputs, float32(radius*math.Cos(angle)), float32(radius*math.Sin(angle)))
		classes = append(classes, class)
	}
	return data.FromSlices(inputs, []int64{2}, classes)
}
