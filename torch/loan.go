package torch

import "penstock/internal/shim"

// A tensor that waits for another device's worker, who copies and frees it, is lent: when it is gone depends on who is ahead. Package pipe tells what a device holds in any case from what may wait.

// Lend says that the memory behind a tensor waits from now on. It returns a number for EndLoan and the bytes; both are 0 where the memory is not charged to the device. Freeing the memory ends the loan as
// well. Memory that is lent already is not lent twice: the number is the same.
func (d Device) Lend(t *Tensor) (loan uint64, bytes int64) {
	if d.Kind != KindCPU {
		return 0, 0
	}
	return shim.Lend(d.account(), t.given("Lend"))
}

// EndLoan says that what was lent waits no more, though it need not be freed.
func (d Device) EndLoan(loan uint64) {
	if d.Kind == KindCPU {
		shim.EndLoan(d.account(), loan)
	}
}

// OwnPeak is the most bytes that were live at a time, without what was lent, since it was asked last, or since the process began.
func (d Device) OwnPeak() int64 {
	if d.Kind != KindCPU {
		return 0
	}
	return shim.OwnPeak(d.account())
}
