package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"penstock.example/balance"
)

// costsLine is the JSON of given costs. Its fields stay.
type costsLine struct {
	Balance    []int   `json:"balance"`
	Bottleneck float64 `json:"bottleneck"`
}

// modelBalanceLine is the JSON of a measured model.
type modelBalanceLine[S any] struct {
	costsLine
	Unit   string `json:"unit"` // "s" for a micro-batch, or "bytes"
	Stages []S    `json:"stages"`
}

// stageLine has the fields of every stage.
type stageLine struct {
	Layers int     `json:"layers"`
	First  string  `json:"first"` // name of the first layer
	Last   string  `json:"last"`
	Cost   float64 `json:"cost"`
}

type timeLine struct {
	stageLine
	Forward       float64 `json:"forward"`
	Backward      float64 `json:"backward"`
	Recomputation float64 `json:"recomputation"`
	Activations   float64 `json:"activations"` // receiving them
	Gradients     float64 `json:"gradients"`   // receiving them
}

type sizeLine struct {
	stageLine
	Parameters int64 `json:"parameters"`
	Gradients  int64 `json:"gradients"`
	State      int64 `json:"state"`
	Buffers    int64 `json:"buffers"`
	Saved      int64 `json:"saved"`
	Inputs     int64 `json:"inputs"`
}

func showCosts(w io.Writer, format string, counts []int, sums []float64) error {
	line := costsLine{counts, slices.Max(sums)}
	if format == "json" {
		return json.NewEncoder(w).Encode(line)
	}
	fmt.Fprintf(w, "--balance %s\n\n", numbers(counts))
	t := newTable(w)
	fmt.Fprintln(t, "STAGE\tLAYERS\tCOST\tOF BOTTLENECK")
	for i, sum := range sums {
		fmt.Fprintf(t, "%d\t%d\t%g\t%s\n", i, counts[i], sum, share(sum, line.Bottleneck))
	}
	return t.Flush()
}

func showTimes(w io.Writer, format string, layers []balance.Layer, counts []int, times []balance.StageTime) error {
	line := modelBalanceLine[timeLine]{costsLine{Balance: counts}, "s", nil}
	for i, s := range stageLines(layers, counts) {
		t := times[i]
		s.Cost = t.Total()
		line.Bottleneck = max(line.Bottleneck, s.Cost)
		line.Stages = append(line.Stages, timeLine{s, t.Forward, t.Backward, t.Recomputation, t.Activations, t.Gradients})
	}
	if format == "json" {
		return json.NewEncoder(w).Encode(line)
	}
	fmt.Fprintf(w, "--balance %s\n\n", numbers(counts))
	t := newTable(w)
	fmt.Fprintln(t, "STAGE\tLAYERS\tFROM\tTO\tFORWARD\tBACKWARD\tRECOMPUTED\tRECEIVED\tMS\tOF BOTTLENECK")
	for i, s := range line.Stages {
		fmt.Fprintf(t, "%d\t%d\t%s\t%s\t%s\t%s\n", i, s.Layers, s.First, s.Last,
			strings.Join([]string{ms(s.Forward), ms(s.Backward), ms(s.Recomputation), ms(s.Activations + s.Gradients), ms(s.Cost)}, "\t"), share(s.Cost, line.Bottleneck))
	}
	return t.Flush()
}

func showSizes(w io.Writer, format string, layers []balance.Layer, counts []int, sizes []balance.StageSize) error {
	line := modelBalanceLine[sizeLine]{costsLine{Balance: counts}, "bytes", nil}
	for i, s := range stageLines(layers, counts) {
		z := sizes[i]
		s.Cost = float64(z.Total())
		line.Bottleneck = max(line.Bottleneck, s.Cost)
		line.Stages = append(line.Stages, sizeLine{s, z.Parameters, z.Gradients, z.State, z.Buffers, z.Saved, z.Inputs})
	}
	if format == "json" {
		return json.NewEncoder(w).Encode(line)
	}
	fmt.Fprintf(w, "--balance %s\n\n", numbers(counts))
	t := newTable(w)
	fmt.Fprintln(t, "STAGE\tLAYERS\tFROM\tTO\tPARAMETERS\tGRADIENTS\tOPTIMIZER\tBUFFERS\tSAVED\tINPUTS\tBYTES\tOF BOTTLENECK")
	for i, s := range line.Stages {
		fmt.Fprintf(t, "%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", i, s.Layers, s.First, s.Last,
			formatBytes(s.Parameters), formatBytes(s.Gradients), formatBytes(s.State),
			formatBytes(s.Buffers), formatBytes(s.Saved), formatBytes(s.Inputs), formatBytes(int64(s.Cost)), share(s.Cost,
				line.Bottleneck))
	}
	return t.Flush()
}

// stageLines says which layers the stages have.
func stageLines(layers []balance.Layer, counts []int) []stageLine {
	var lines []stageLine
	for _, count := range counts {
		lines = append(lines, stageLine{Layers: count, First: layers[0].Name, Last: layers[count-1].Name})
		layers = layers[count:]
	}
	return lines
}

func ms(seconds float64) string { return plainNumber(1000*seconds, 3) }

// share is a stage's cost as a part of the bottleneck's: how busy the stage is while the slowest
// one works.
func share(cost, bottleneck float64) string {
	if bottleneck == 0 {
		return "100 %"
	}
	return fmt.Sprintf("%.0f %%", 100*cost/bottleneck)
}
