"""Several datasets as one: opened together, prepared for one order, samples made by the member they are of."""
