package remat_test

import (
	"fmt"

	"penstock/remat"

	"penstock/remat/baselines"

	"penstock/remat/explain"
)

// Four layers, of which the first two are run again: their X are not kept over the others' backward.
func ExampleCheck() {
	c := plain(4, 3) // outputs of 1 byte, 3 bytes saved; forward takes 1 us, backward 2
	ops, err := remat.ParseOps("K0 F1 S2 S3 L B3 B2 S0 S1 B1 B0")
	if err != nil {
		fmt.Println(err)
		return
	}
	report, err := remat.Check(c, ops)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("peak %d bytes in %v, %d held for the backward, %v us, %d forwards run again\n", report.Peak, ops[report.PeakOp], report.Held, report.Time, report.Recomputed)

	_, err = remat.Check(c, ops[:7])
	fmt.Println(err)
	// Output:
	// peak 10 bytes in B3, 8 held for the backward, 14 us, 2 forwards run again
	// remat: the plan ends after 7 operations: the backward of layer 1 has not run; want the backward of layers 1 to 0
}

func ExampleDraw() {
	c := plain(4, 3)
	ops, err := baselines.Sequential(4, 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := explain.Draw(c, ops, explain.DrawConfig{Width: 80})
	if err != nil {
		fmt.Println(err)
		return
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
