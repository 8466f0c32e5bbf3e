"""The software-defined assets, one module a stage; each is thin and calls the library below."""
