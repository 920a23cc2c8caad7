package grpcchannel

import "github.com/sluice-router/sluice/internal/rawmessage"

// rawCodec carries what dialects have encoded.
const rawCodec = rawmessage.Codec("proto")

// keptFlat is the largest buffer that a stream keeps for the next message, in bytes.
const keptFlat = 64 << 10
