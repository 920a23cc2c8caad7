package generate

// EngineError is an answer that the engine must not give: the engine is at fault, not the
// request, and what it tells further is not used.
type EngineError struct {
	// Message says what is wrong, for clients and the log.
	Message string
	// Finish is Failed or Aborted where the engine itself told that it could not go on,
	// Running where it broke the rules of its answers.
	Finish Finish
}

// Error is the message.
func (e *EngineError) Error() string { return e.Message }
