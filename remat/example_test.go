package remat_test

import (
	"fmt"

	"penstock.example/remat"
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
