// Package group joins the processes that train one model together: it knows who is there and who has
// failed, and moves bytes from one to another.
//
// Every process calls Join with its rank. Tensors move by Send and Receive, small data by Meet. A failure
// is final: once a member has failed or is lost, all calls that wait end with an error that names it, and so
// do later calls. The job then goes on from its last checkpoint in new processes.
//
//	g, err := group.Join(ctx, group.Config{Rank: rank, Size: 2, Address: "10.0.0.1:29500", Token: token})
//	defer g.Close()
//	w, err := g.Send(x, 1-rank, 0)
//
// # Connections
//
// Rank 0 listens at Config.Address until all members have come. Each member keeps its connection to rank 0
// for heartbeats, failures and meetings. Tensors go by Gloo, of libtorch's c10d, between ports that each
// member opens. Pipes send tensors of GPUs by NCCL, without the group.
//
// A member whose process ends is lost at once, as its connections are closed. A member that is stopped or cut
// off is lost after Config.Silence. Rank 0 decides which failure was the first, so all members name the same.
//
// # Security
//
// Both sides of a connection to rank 0 prove that they know the token, which is not sent. Without a token, a
// group joins at a loopback address only. A stranger can send one frame of 1 KiB. Nothing is encrypted.
//
// Gloo protects nothing: whoever reaches a member's port for tensors can read and change them, and end the
// process. So these ports have to be closed to everybody but the members, as in a network of their own.
package group
