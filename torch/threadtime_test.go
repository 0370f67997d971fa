package torch_test

import (
	"runtime"
	"testing"
	"time"

	"penstock.example/torch"
)

// TestThreadTime: computing counts, sleeping does not.
func TestThreadTime(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := torch.ThreadTime()
	for sum := 0; torch.ThreadTime()-before < 5*time.Millisecond; sum++ { // it would never end if the clock stood still
	}
	const asleep = 100 * time.Millisecond
	before = torch.ThreadTime()
	time.Sleep(asleep)
	if took := torch.ThreadTime() - before; took < 0 || took > asleep/4 {
		t.Errorf("%v asleep took %v of the processor", asleep, took)
	}
}
