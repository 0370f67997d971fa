// Package group joins the processes that train one model together. It moves tensors and small data
// between them, and notices failures.
//
// Every process calls Join with its rank. Tensors move by Send and Receive, small data by Meet. A
// failure is final: all waiting and later calls of all members end with an error that names the
// failed member. The job then goes on from its last checkpoint in new processes.
//
//	g, err := group.Join(ctx, group.Config{Rank: rank, Size: 2, Address: "10.0.0.1:29500", Token: token})
//	defer g.Close()
//	w, err := g.Send(x, 1-rank, 0)
//
// # Connections
//
// Rank 0 listens at Config.Address until all members have joined. Each member keeps its connection
// to rank 0 for heartbeats, failures and meetings. Gloo, of libtorch's c10d, carries tensors
// between ports that each member opens. Pipes send tensors of GPUs by NCCL, without the group.
//
// A member whose process ends is lost at once, as its connections are closed. A member that is
// stopped or cut off is lost after Config.Silence. Rank 0 decides which failure was first, so all
// members name the same failure.
//
// # Security
//
// Both sides of a connection to rank 0 prove that they know the token, which is not sent. Without a
// token, rank 0 must listen on a loopback address. A stranger can send one frame of 1 KiB. The
// stranger's connection is closed after Config.Silence, or when 128 more have come. Nothing is
// encrypted.
//
// Gloo protects nothing: whoever reaches a member's port for tensors can read and change the
// tensors, and end the process. So only members may reach these ports, for example in a network of
// their own.
package group
