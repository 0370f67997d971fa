package torch_test

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// churn allocates and frees tensors of all sizes at random, at most so many live bytes at once, and
// calls see after each. A tensor that is freed has what was written into it. What it leaves live is
// scattered over all that was allocated.
func churn(t *testing.T, d torch.Device, most int64, rounds int, see func()) {
	t.Helper()
	c, look := torch.NewCtx(torch.Options{Device: d, Threads: 1}), torch.NewCtx(torch.Options{Threads: 1})
	t.Cleanup(func() { c.Close(); d.Trim() })
	random := rand.New(rand.NewPCG(1, 2))
	type filled struct {
		*torch.Tensor
		with uint8
	}
	var live []filled
	free := func(i int) {
		x := live[i]
		n := x.Numel()
		for _, at := range []int64{0, random.Int64N(n), n - 1} {
			if got := torch.Values[uint8](look.Narrow(x.Tensor, 0, at, 1))[0]; got != x.with {
				t.Fatalf("byte %d of %d is %d, and %d was written", at, n, got, x.with)
			}
		}
		look.Release(0)
		x.Free()
		live[i] = live[len(live)-1]
		live = live[:len(live)-1]
	}
	for i := range rounds {
		size := int64(1) << (12 + random.IntN(12)) // 4 KiB to 8 MiB
		size += random.Int64N(size)
		for d.Memory().Live+size > most {
			free(random.IntN(len(live)))
		}
		with := uint8(i)
		live = append(live, filled{c.Fill_(c.Empty(torch.Uint8, size), float64(with)), with})
		see()
	}
	for d.Memory().Live > most/4 { // a tensor is no larger
		free(random.IntN(len(live)))
	}
	see()
}

// The blocks of an account take little more of the system than the account's own peak, whatever is
// freed and reused; and after Trim little more than what is live.
func TestTakenFollowsTheAccount(t *testing.T) {
	torchtest.Check(t)
	const most, page = 64 << 20, 4096
	d := torch.CPU(7)
	d.Trim()
	d.ResetPeak()
	reused := false
	churn(t, d, most, 4000, func() {
		m := d.Memory()
		if bound := (m.Peak + m.Peak/(32<<10)*page) / 64 * 65; m.Taken > bound { // blocks of less than 32 KiB are not rounded to pages
			t.Fatalf("%+v: more than %d is taken", m, bound)
		}
		if m.Taken < m.Live+m.Cached {
			t.Fatalf("%+v: less is taken than is live and cached", m)
		}
		reused = reused || m.Cached > 0
	})
	if !reused {
		t.Error("nothing was cached")
	}
	d.Trim()
	if m := d.Memory(); m.Cached != 0 || m.Live == 0 || m.Taken > m.Live+m.Live/8+1<<20 {
		t.Errorf("after Trim: %+v", m)
	}
}

// Once freed, memory goes back to the system, although what stays live lies between what was freed.
// In malloc's heap it would stay.
func TestResidentMemoryFollowsTheAccount(t *testing.T) {
	torchtest.Check(t)
	const most, more = 256 << 20, 24 << 20
	d := torch.CPU(7)
	d.Trim()
	torch.TrimProcess()
	before := torch.ReadProcessMemory()
	if before.Resident == 0 {
		t.Skip("the system does not tell what is resident")
	}
	highest, i := int64(0), 0
	churn(t, d, most, 3000, func() {
		if i++; i%50 == 0 {
			highest = max(highest, torch.ReadProcessMemory().Resident)
		}
	})
	if bound := before.Resident + most*11/10 + more; highest > bound {
		t.Errorf("%d MiB were resident with at most %d MiB live, %d MiB more than before; want at most %d MiB", highest>>20, most>>20, (highest-before.Resident)>>20, bound>>20)
	}
	d.Trim()
	torch.TrimProcess()
	live, now := d.Memory().Live, torch.ReadProcessMemory()
	if bound := before.Resident + live*11/10 + more; now.Resident > bound {
		t.Errorf("%d MiB are resident with %d MiB live, %d MiB more than before; want at most %d MiB", now.Resident>>20, live>>20, (now.Resident-before.Resident)>>20, bound>>20)
	}
	if now.Peak < highest-1<<20 { // the system counts in batches of pages, by thread
		t.Errorf("at most %d were resident, and %d have been seen", now.Peak, highest)
	}
}

// What Go's collector keeps goes back to the system.
func TestTrimProcess(t *testing.T) {
	const large = 256 << 20
	hold := make([]byte, large)
	for i := 0; i < len(hold); i += 4096 {
		hold[i] = 1
	}
	before := torch.ReadProcessMemory().Resident
	if before < large {
		t.Skipf("the system tells of %d resident bytes", before)
	}
	runtime.KeepAlive(hold)
	hold = nil
	torch.TrimProcess()
	if after := torch.ReadProcessMemory().Resident; after > before-large*3/4 {
		t.Errorf("%d MiB were resident, and %d are", before>>20, after>>20)
	}
}

func TestALowerLimitReturnsCachedBlocks(t *testing.T) {
	torchtest.Check(t)
	d := torch.CPU(7)
	d.Trim()
	c := torch.NewCtx(torch.Options{Device: d})
	defer d.Trim()
	defer c.Close()
	c.Zeros(torch.Uint8, 1<<20)
	mark := c.Mark()
	for range 8 {
		c.Zeros(torch.Uint8, 3<<20)
	}
	c.Release(mark)
	defer d.SetLimit(0)
	for _, limit := range []int64{16 << 20, 4 << 20, 1 << 20} {
		d.SetLimit(limit)
		if m := d.Memory(); m.Taken > max(limit, 1<<20+1<<16) {
			t.Errorf("with a limit of %d: %+v", limit, m)
		}
	}
}
