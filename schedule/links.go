package schedule

import (
	"fmt"
	"time"
)

// Links is the cost of moving values between workers, for a simulation. The zero value costs
// nothing. Transfers between stages of one worker cost nothing in any case.
//
// A value that leaves at time t, with latency a and b for its bytes, arrives at t + a + b, where b
// is bytes over bandwidth (Hockney, 1994, Parallel Computing 20, p. 389). Until t + b nothing else
// leaves on the link from this worker to that one; values leave in the order in which they are
// sent. Neither worker is held meanwhile: the sender goes on, and the receiver waits when it comes
// to the receive and the value is not there.
//
// If the program's capacity has a sender wait for a receiver, it continues a latency after the
// event that it waits for, as it has to hear of it. With a capacity of c values a receive is posted
// when the one c receives before it is done, and the send waits for that. With the capacity [Meet]
// the sender waits after the send, on a Buffer for the end of the receive, otherwise until it is
// posted, when the receiver comes to it, and only then does the value leave:
//
//	Buffer            send ├───── a + b ─────┤ receive ├── a ──┤ next action of the sender
//	Rendezvous, FIFO  send, posted ├── a ──┤ next action of the sender
//	                                       ├───── a + b ─────┤ receive
//
// A receive is an action: whoever receives ahead of a send waits for the value before it sends.
type Links struct {
	Transport Transport
	// Cost is the cost of the value of a send between two workers. Nil is free. It must not return
	// less than zero.
	Cost func(send Action) Transfer
}

// Transfer is the cost of moving a value.
type Transfer struct {
	Latency time.Duration // from when it leaves until its first byte arrives
	Bytes   time.Duration // from its first byte to its last: their number over the bandwidth
}

// Transport is how links between workers carry values. The zero value is Buffer.
type Transport uint8

const (
	// Buffer takes a value whenever it is sent, whether or not its receive was posted.
	Buffer Transport = iota
	// Rendezvous takes a value when its receive was posted, whatever else was posted before. Gloo's
	// links are like that.
	Rendezvous
	// FIFO is Rendezvous in order: values have no names, so that each worker must receive from each
	// other in the order in which that sends ([Limits]). NCCL's links are like that.
	FIFO
)

// transports are the words for transports.
var transports = []string{"buffer", "rendezvous", "fifo"}

// String returns the transport's word.
func (t Transport) String() string {
	if int(t) < len(transports) {
		return transports[t]
	}
	return fmt.Sprintf("transport(%d)", uint8(t))
}

// Uniform returns links of one latency and one bandwidth, in bytes a second; zero is no bound.
// bytes says how many bytes a send moves. Nil is none.
func Uniform(t Transport, latency time.Duration, bandwidth float64, bytes func(send Action) int64) Links {
	return Links{Transport: t, Cost: func(send Action) Transfer {
		out := Transfer{Latency: latency}
		if bandwidth > 0 && bytes != nil {
			out.Bytes = time.Duration(float64(bytes(send)) / bandwidth * float64(time.Second))
		}
		return out
	}}
}

// of returns the cost of a transfer's value.
func (l Links) of(a Action) Transfer {
	switch {
	case l.Cost == nil:
		return Transfer{}
	case a.Kind.Receive():
		return l.Cost(a.Matching())
	}
	return l.Cost(a)
}
