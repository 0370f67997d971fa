package torch

import "penstock.example/internal/shim"

// A tensor is lent while it waits for another device's worker to copy and free it. How long it
// waits depends on timing, so package pipe counts lent bytes apart from the rest.

// Lend marks the memory of a tensor as lent. It returns a number for EndLoan, and the bytes. Both
// are 0 where the memory is not charged to the device. Freeing the memory ends the loan too. Memory
// that is lent already keeps its number.
func (d Device) Lend(t *Tensor) (loan uint64, bytes int64) {
	return shim.Lend(d.account(), t.given("Lend"))
}

// EndLoan ends a loan; the memory need not be freed.
func (d Device) EndLoan(loan uint64) { shim.EndLoan(d.account(), loan) }

// OwnPeak returns the peak of live bytes without those lent, since its last call or since the
// process began.
func (d Device) OwnPeak() int64 { return shim.OwnPeak(d.account()) }
