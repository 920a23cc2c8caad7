// Package codec is how the envelopes of a cluster are written on a stream: in the wire
// format of Protocol Buffers, by hand, because a member reads and writes several for each
// request.
//
// # The messages
//
// Numbers that may be negative are sint64, those that are mostly large (incarnations,
// hashes) fixed64, others uint64; times are sint64 in nanoseconds, and always durations:
// clocks of members have nothing in common. What is zero is left out.
//
//	message Envelope {
//	  fixed64 from = 1;  fixed64 to = 2;
//	  uint64 stamp = 3;  uint64 echo = 4;
//	  Epoch epoch = 5;   uint32 office = 6;
//	  uint64 session = 7;  uint64 seq = 8;  uint64 ack = 9;
//	  repeated Control control = 10;
//	  repeated Item items = 11;
//	  bool heard = 12;
//	  sint64 echo_age = 512;  bool wanted = 513;
//	}
//	message Item {
//	  uint32 kind = 1;  uint32 op = 2;  bool granted = 3;
//	  uint32 attempt = 4;  uint64 number = 5;  fixed64 member = 6;  sint64 amount = 7;
//	  uint32 prefill_number = 8;  uint64 prefill_generation = 9;
//	  uint32 decode_number = 10;  uint64 decode_generation = 11;
//	  uint64 place_epoch = 12;    uint64 place_number = 13;
//	  bytes body = 14;  // a message by kind
//	  bytes refused = 15;  // of a decision, in place of body
//	}
//	message Target {
//	  uint32 number = 1;
//	  TargetSpec spec = 2;
//	}
//
// The others are the types of package cluster, field by field, as the functions of this
// package name them. Settings and the view for operators are JSON.
//
// # Targets
//
// What requests ask for is mostly one of a few targets. A stream sends each once, with a
// number that counts from 1, and then its number; the reader remembers 1,024 of up to 2 KiB.
// When there are more the numbers are given out anew from 1 on. Larger ones are sent whole
// each time, without a number.
//
// # Versions
//
// A reader skips fields with numbers from 512 on that it does not know, and items and
// control messages of kinds from 128 on. It refuses messages with any other that it does not
// know, and the stream ends.
//
// # Bounds
//
// A message has up to 16 MiB, nests up to 16 deep, and makes the reader allocate up to
// 64 MiB. Amounts are read as they are written: whoever uses them bounds them.
package codec
