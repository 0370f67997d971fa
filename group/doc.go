// Package group joins processes that train one model together: who is there, who has failed, and
// bytes from one to another.
//
// Every process calls Join with its rank. Tensors move by Send and Receive, small things by Gather.
// A failure is final: once a member has failed or is lost, what waits on any member ends with an
// error that names it, and so does whatever is called later. The job then goes on from its last
// checkpoint in new processes. Package link moves what stages send over a group; package pipe says
// when.
//
//	g, err := group.Join(ctx, group.Config{Rank: rank, Size: 2, Address: "10.0.0.1:29500"})
//	defer g.Close()
//	w, err := g.Send(x, 1-rank, 0)
//
// # Connections
//
// Members find each other in the store of c10d, libtorch's communication between processes, which
// rank 0 starts or torchrun's agent has. Each has a control connection to rank 0, which carries
// heartbeats, failures and gathers. Tensors go by c10d's Gloo from each member to each other; those of
// GPUs a pipe sends by NCCL, of which the group knows nothing.
//
//	c10d's store       1 port, of Config.Address      to find each other
//	control            1 port of rank 0               heartbeats, failures, gathers
//	Gloo               1 port of each member          tensors
//
// A member whose process ends is lost at once, as its connections are closed. One that is stopped
// or cut off is lost after Config.Silence.
//
// # Security
//
// The control connection listens on one network interface. Both sides prove that they know the
// job's token, which is not sent. What comes is read as one of a few messages of bounded length.
// It is not encrypted.
//
// c10d protects nothing: whoever reaches its store or a member's port for tensors can read and
// change what is there, and end the process. The store listens on all interfaces. Where rank 0
// makes the token, it is in the store. So the ports have to be closed to everybody but the members,
// as in a network of their own.
package group
