package train_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"penstock.example/internal/draws"
	"penstock.example/internal/must"
	"penstock.example/internal/proctest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/torch"
	"penstock.example/train"
)

// saveForever, a directory in the environment, makes this test binary a process that saves there
// until it is killed.
const saveForever = "PENSTOCK_TEST_SAVE_FOREVER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(saveForever); dir != "" {
		fmt.Println(saver(dir))
		os.Exit(1)
	}
	if text := os.Getenv(saveTogether); text != "" {
		fmt.Println(togetherSaver(text))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// saver saves one step after the other, and says so after each.
func saver(dir string) error {
	c := torch.NewCtx(torch.Options{})
	model := network()
	nn.Materialise(c, nn.State(model), 1)
	o, err := optim.New("sgd", optim.Config{})
	if err != nil {
		return err
	}
	for step := int64(1); ; step++ {
		if _, err := (train.Store{Dir: dir}).Save(train.Progress{Step: step}, recipe(), model, o); err != nil {
			return err
		}
		fmt.Println(step)
	}
}

// TestKilledWhileSaving kills a process at odd moments of its saving. What it said it had saved is
// there, or the one after; and it is whole.
func TestKilledWhileSaving(t *testing.T) {
	kills := 2
	if draws.Full {
		kills = 4
	}
	for i := range kills {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), saveForever+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		must.Do(t, cmd.Start())
		proctest.Watch(t, cmd, proctest.Limit)
		lines := bufio.NewScanner(out)
		said := int64(0)
		for lines.Scan() {
			if said, err = strconv.ParseInt(lines.Text(), 10, 64); err != nil {
				t.Fatal(lines.Text())
			}
			if said == 2 {
				time.AfterFunc(time.Duration(i*1900)*time.Microsecond, func() { cmd.Process.Kill() })
			}
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) {
			t.Fatalf("the process ended with %v", err)
		}
		c, err := train.Store{Dir: dir}.Latest()
		if err != nil {
			t.Fatalf("killed after step %d: %v", said, err)
		}
		if c.Step != said && c.Step != said+1 {
			t.Errorf("killed after step %d, the latest checkpoint is %d", said, c.Step)
		}
	}
}
